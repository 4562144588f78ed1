package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// stranger is a client that knows nothing of the service but what the server tells, as grpcurl.
type stranger struct {
	t    *testing.T
	conn *grpc.ClientConn
}

func (s stranger) ask(req *grpc_reflection_v1.ServerReflectionRequest) *grpc_reflection_v1.ServerReflectionResponse {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := stream.Send(req); err != nil {
		s.t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return reply
}

func (s stranger) services() (names []string) {
	s.t.Helper()
	reply := s.ask(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	for _, service := range reply.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	return names
}

// call calls a method by its name, with JSON.
func (s stranger) call(service, method, request string) (string, error) {
	s.t.Helper()
	reply := s.ask(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
	})
	var files descriptorpb.FileDescriptorSet
	for _, raw := range reply.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(raw, file); err != nil {
			s.t.Fatal(err)
		}
		files.File = append(files.File, file)
	}
	known, err := protodesc.NewFiles(&files)
	if err != nil {
		s.t.Fatal(err)
	}
	found, err := known.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		s.t.Fatalf("%v: %v", service, err)
	}
	desc := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	in, out := dynamicpb.NewMessage(desc.Input()), dynamicpb.NewMessage(desc.Output())
	if err := (protojson.UnmarshalOptions{Resolver: new(protoregistry.Types)}).Unmarshal([]byte(request), in); err != nil {
		s.t.Fatal(err)
	}
	if err := s.conn.Invoke(s.t.Context(), "/"+service+"/"+method, in, out); err != nil {
		return "", err
	}
	return strings.ReplaceAll(protojson.MarshalOptions{}.Format(out), " ", ""), nil
}

// A client without a proto file finds the service and calls it, and is limited there and nowhere else.
func TestReflection(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, w, "127.0.0.1:0") }()
	line := make([]byte, 200)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(line[:n])) // listening: grpcurl -plaintext ADDRESS list
	conn, err := grpc.NewClient(words[3], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s := stranger{t, conn}
	for range 20 { // reflection costs nothing
		if names := s.services(); !slices.Contains(names, "sluice.example.Greeter") || !slices.Contains(names, "grpc.health.v1.Health") {
			t.Fatal(names)
		}
	}
	if got, err := s.call("sluice.example.Greeter", "Hello", `{"name": "ann"}`); err != nil || got != `{"text":"helloann","remaining":"2"}` {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := s.call("grpc.health.v1.Health", "Check", `{}`); err != nil || got != `{"status":"SERVING"}` {
		t.Errorf("%s, %v", got, err)
	}
	for range 4 {
		if _, err := s.call("sluice.example.Greeter", "Report", `{"id": "q3"}`); err != nil {
			t.Error(err)
		}
	}
	_, err = s.call("sluice.example.Greeter", "Report", `{"id": "q3"}`)
	denied := status.Convert(err)
	isRetry := func(detail any) bool { _, ok := detail.(*errdetails.RetryInfo); return ok }
	if denied.Code() != codes.ResourceExhausted || !slices.ContainsFunc(denied.Details(), isRetry) {
		t.Errorf("the last report: %v, %v", denied, denied.Details())
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
