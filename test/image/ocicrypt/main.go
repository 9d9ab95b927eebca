// Encrypts and decrypts layers with ocicrypt, as the tools do that nodes have.
//
//	ocicrypt encrypt PUBLIC_KEY ANNOTATIONS   standard input to output; the annotations go to a file
//	ocicrypt decode PRIVATE_KEY               a stream processor (containerd, core/diff)
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func main() {
	act := decode
	if os.Args[1] == "encrypt" {
		act = encrypt
	}
	if err := act(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func encrypt(args []string) error {
	key, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	how, err := config.EncryptWithJwe([][]byte{key})
	if err != nil {
		return err
	}
	encrypted, finish, err := ocicrypt.EncryptLayer(how.EncryptConfig, os.Stdin, ocispec.Descriptor{})
	if err != nil {
		return err
	}
	if _, err := io.Copy(os.Stdout, encrypted); err != nil {
		return err
	}
	annotations, err := finish()
	if err != nil {
		return err
	}
	text, err := json.Marshal(annotations)
	if err != nil {
		return err
	}
	return os.WriteFile(args[1], text, 0o600)
}

// As imgcrypt's payload.go has it.
type payload struct {
	DecryptConfig config.DecryptConfig
	Descriptor    ocispec.Descriptor
}

func decode(args []string) error {
	if os.Getenv("STREAM_PROCESSOR_MEDIATYPE") == "" {
		return errors.New("STREAM_PROCESSOR_MEDIATYPE is not set")
	}
	key, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	how, err := config.DecryptWithPrivKeys([][]byte{key}, [][]byte{nil})
	if err != nil {
		return err
	}
	given, err := readPayload()
	if err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	decrypted, _, err := ocicrypt.DecryptLayer(how.DecryptConfig, os.Stdin, given.Descriptor, false)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, decrypted)
	return err
}

func readPayload() (*payload, error) {
	bytes, err := io.ReadAll(os.NewFile(3, "payload"))
	if err != nil {
		return nil, err
	}
	var wrapped anypb.Any
	if err := proto.Unmarshal(bytes, &wrapped); err != nil {
		return nil, err
	}
	if wrapped.TypeUrl != "io.containerd.ocicrypt.v1.Payload" {
		return nil, fmt.Errorf("type %q", wrapped.TypeUrl)
	}
	var given payload
	return &given, json.Unmarshal(wrapped.Value, &given)
}
