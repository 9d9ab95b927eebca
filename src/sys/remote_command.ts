// Numbers the channels of an exec or attach over WebSocket: each message begins with its channel's number.

/** close: v5, followed by the number of a channel that is half-closed. */
export const channel = { stdin: 0, stdout: 1, stderr: 2, error: 3, resize: 4, close: 255 } as const;
