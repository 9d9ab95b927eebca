// Prints a compiled descriptor, one fact a line, for proto.test.ts to compare: of k8s.io/cri-api, or
// of containerd/nri when its argument is nri.
package main

import (
	"fmt"
	"os"

	nri "github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	file := cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto
	if len(os.Args) > 1 && os.Args[1] == "nri" {
		file = nri.File_pkg_api_api_proto
	}
	fmt.Printf("package %s, syntax %s\n", file.Package(), file.Syntax())
	messages(file.Messages())
	enums(file.Enums())
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			fmt.Printf("rpc %s.%s(%s%s) returns (%s%s)\n", service.FullName(), method.Name(),
				stream(method.IsStreamingClient()), method.Input().FullName(),
				stream(method.IsStreamingServer()), method.Output().FullName())
		}
	}
}

func messages(list protoreflect.MessageDescriptors) {
	for i := range list.Len() {
		message := list.Get(i)
		if message.IsMapEntry() {
			continue // Its key and value stand in the map field's line.
		}
		fmt.Printf("message %s\n", message.FullName())
		for j := range message.Fields().Len() {
			field(message, message.Fields().Get(j))
		}
		for j := range message.ReservedRanges().Len() {
			fmt.Printf("reserved %s %v\n", message.FullName(), message.ReservedRanges().Get(j))
		}
		for j := range message.ReservedNames().Len() {
			fmt.Printf("reserved %s %s\n", message.FullName(), message.ReservedNames().Get(j))
		}
		messages(message.Messages())
		enums(message.Enums())
	}
}

func field(message protoreflect.MessageDescriptor, field protoreflect.FieldDescriptor) {
	label := field.Cardinality().String()
	kind := kindOf(field)
	if field.IsMap() {
		label = "map"
		kind = kindOf(field.MapKey()) + " to " + kindOf(field.MapValue())
	}
	options := field.Options().(*descriptorpb.FieldOptions)
	fmt.Printf("field %s.%s = %d, %s %s", message.FullName(), field.Name(), field.Number(), label, kind)
	if oneof := field.ContainingOneof(); oneof != nil {
		fmt.Printf(", oneof %s", oneof.Name())
	}
	if options.GetDeprecated() {
		fmt.Print(", deprecated")
	}
	if options.GetDebugRedact() {
		fmt.Print(", debug_redact")
	}
	if options != nil && options.Packed != nil {
		fmt.Printf(", packed %v", options.GetPacked())
	}
	fmt.Println()
}

func kindOf(field protoreflect.FieldDescriptor) string {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return "message " + string(field.Message().FullName())
	case protoreflect.EnumKind:
		return "enum " + string(field.Enum().FullName())
	case protoreflect.GroupKind:
		fmt.Fprintf(os.Stderr, "%s is a group\n", field.FullName())
		os.Exit(1)
	}
	return field.Kind().String()
}

func enums(list protoreflect.EnumDescriptors) {
	for i := range list.Len() {
		enum := list.Get(i)
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			fmt.Printf("enum %s.%s = %d\n", enum.FullName(), value.Name(), value.Number())
		}
	}
}

func stream(is bool) string {
	if is {
		return "stream "
	}
	return ""
}
