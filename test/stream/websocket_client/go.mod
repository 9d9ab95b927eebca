module isulad-ts/test/stream/websocket_client

go 1.25.0

require golang.org/x/net v0.57.0
