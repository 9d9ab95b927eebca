// A client of a stream URL, as Kubernetes's e2e tests are one: golang.org/x/net/websocket.
//
//	websocket URL PROTOCOLS COUNT
//
// PROTOCOLS: separated by commas, or empty. What is read from standard input is sent on channel 0, after the
// first message has come. Ends with the connection, or when COUNT bytes have come on channels 0 and 1 (0:
// never). Prints what came: channel, a space, base64, one line a channel, and the protocol that was chosen.
package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/net/websocket"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(url, protocols, countText string) error {
	count, err := strconv.Atoi(countText)
	if err != nil {
		return err
	}
	config, err := websocket.NewConfig(url, "http://localhost")
	if err != nil {
		return err
	}
	if protocols != "" {
		config.Protocol = strings.Split(protocols, ",")
	}
	ws, err := websocket.DialConfig(config)
	if err != nil {
		return err
	}
	defer ws.Close()
	isBase64 := len(ws.Config().Protocol) == 1 && strings.Contains(ws.Config().Protocol[0], "base64")
	came := map[byte][]byte{}
	for first := true; ; first = false {
		var message []byte
		if err := websocket.Message.Receive(ws, &message); err != nil {
			if !errors.Is(err, io.EOF) {
				return err
			}
			break
		}
		if first {
			go send(ws, isBase64)
		}
		channel, bytes, err := decode(message, isBase64)
		if err != nil {
			return err
		}
		came[channel] = append(came[channel], bytes...)
		if count > 0 && len(came[0])+len(came[1]) >= count {
			break
		}
	}
	for channel := range byte(8) {
		if bytes, ok := came[channel]; ok {
			fmt.Printf("%d %s\n", channel, base64.StdEncoding.EncodeToString(bytes))
		}
	}
	fmt.Printf("protocol %s\n", strings.Join(ws.Config().Protocol, ","))
	return nil
}

func send(ws *websocket.Conn, isBase64 bool) {
	buffer := make([]byte, 10_000)
	for {
		size, err := os.Stdin.Read(buffer)
		if size > 0 && isBase64 {
			err = errors.Join(err, websocket.Message.Send(ws, "0"+base64.StdEncoding.EncodeToString(buffer[:size])))
		} else if size > 0 {
			err = errors.Join(err, websocket.Message.Send(ws, append([]byte{0}, buffer[:size]...)))
		}
		if err != nil {
			return
		}
	}
}

func decode(message []byte, isBase64 bool) (byte, []byte, error) {
	if !isBase64 {
		return message[0], message[1:], nil
	}
	bytes, err := base64.StdEncoding.DecodeString(string(message[1:]))
	return message[0] - '0', bytes, err
}
