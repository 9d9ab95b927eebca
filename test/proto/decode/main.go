// Decodes CRI messages as kubelets do, for test/fuzz/go_decoder.ts: each line of its input is a
// message's name and its bytes in hex; it prints a line for each that Go refuses.
package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadString('\n')
		if err != nil {
			return
		}
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err := decode(name, text); err != nil {
			fmt.Printf("%s: %v\n", name, err)
		}
	}
}

func decode(name, text string) error {
	bytes, err := hex.DecodeString(text)
	if err != nil {
		return err
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("runtime.v1." + name))
	if err != nil {
		return err
	}
	return proto.Unmarshal(bytes, kind.New().Interface())
}
