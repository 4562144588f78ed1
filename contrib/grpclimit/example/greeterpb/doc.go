// Package greeterpb is generated from greeter.proto: by protoc, with protoc-gen-go and protoc-gen-go-grpc on PATH.
package greeterpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative greeter.proto
