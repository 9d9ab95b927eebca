// The channels of an exec or attach over WebSocket, for both ends: each message begins with the number of
// its channel.

/** close: of v5, before the number of a channel that is half-closed. */
export const channel = { stdin: 0, stdout: 1, stderr: 2, error: 3, resize: 4, close: 255 } as const;
