// Prints compiled descriptors, one fact a line, for proto.test.ts to compare: k8s.io/cri-api for the argument
// cri, containerd/nri for nri, and for containerd the files of containerd/api whose calls cAdvisor makes.
package main

import (
	"fmt"
	"os"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	task "github.com/containerd/containerd/api/types/task"
	nri "github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var files = map[string][]protoreflect.FileDescriptor{
	"cri": {cri.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto},
	"nri": {nri.File_pkg_api_api_proto},
	"containerd": {
		version.File_services_version_v1_version_proto,
		containers.File_services_containers_v1_containers_proto,
		tasks.File_services_tasks_v1_tasks_proto,
		task.File_types_task_task_proto,
		anypb.File_google_protobuf_any_proto,
		emptypb.File_google_protobuf_empty_proto,
		timestamppb.File_google_protobuf_timestamp_proto,
	},
}

func main() {
	if len(os.Args) != 2 || files[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: go run . cri|nri|containerd")
		os.Exit(2)
	}
	for _, file := range files[os.Args[1]] {
		describe(file)
	}
}

func describe(file protoreflect.FileDescriptor) {
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
