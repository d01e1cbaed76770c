package schema

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
	rpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/nearcall/nearcall"
)

// Compile compiles .proto files, which import others relative to the folders importPaths. Without
// import paths, these are the working directory and the folders of the files.
func Compile(ctx context.Context, files, importPaths []string) (*protoregistry.Files, error) {
	if len(importPaths) == 0 {
		importPaths = []string{"."}
		for _, file := range files {
			importPaths = append(importPaths, filepath.Dir(file))
		}
	}
	var names []string
	for _, file := range files {
		name, err := importName(file, importPaths)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: importPaths}),
		SourceInfoMode: protocompile.SourceInfoStandard, // has the comments
	}
	compiled, err := compiler.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	all := new(protoregistry.Files)
	for _, file := range compiled {
		if err := addFile(all, file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// importName returns the name with which others import file: its path within the first import path
// that it is in. file is relative to the working directory or to an import path.
func importName(file string, importPaths []string) (string, error) {
	if _, err := os.Stat(file); err == nil {
		absolute, err := filepath.Abs(file)
		if err != nil {
			return "", err
		}
		for _, dir := range importPaths {
			if dir, err = filepath.Abs(dir); err != nil {
				return "", err
			}
			if name, err := filepath.Rel(dir, absolute); err == nil && filepath.IsLocal(name) {
				return filepath.ToSlash(name), nil
			}
		}
		return "", fmt.Errorf("%s is in no import path", file)
	}
	for _, dir := range importPaths {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil && filepath.IsLocal(file) {
			return filepath.ToSlash(filepath.Clean(file)), nil
		}
	}
	return "", fmt.Errorf("there is no file %s", file)
}

// addFile adds file, and those that it imports, unless they are there.
func addFile(all *protoregistry.Files, file protoreflect.FileDescriptor) error {
	if _, err := all.FindFileByPath(file.Path()); err == nil {
		return nil
	}
	for i := range file.Imports().Len() {
		if err := addFile(all, file.Imports().Get(i).FileDescriptor); err != nil {
			return err
		}
	}
	return all.RegisterFile(file)
}

// Load returns the files of encoded FileDescriptorSets. Of files with the same path, the first
// counts.
func Load(paths []string) (*protoregistry.Files, error) {
	all, seen := new(descriptorpb.FileDescriptorSet), make(map[string]bool)
	for _, path := range paths {
		encoded, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		set := new(descriptorpb.FileDescriptorSet)
		if err := proto.Unmarshal(encoded, set); err != nil {
			return nil, fmt.Errorf("%s is not an encoded FileDescriptorSet: %w", path, err)
		}
		for _, file := range set.File {
			if !seen[file.GetName()] {
				seen[file.GetName()] = true
				all.File = append(all.File, file)
			}
		}
	}
	for _, file := range all.File {
		for _, imported := range file.Dependency {
			if !seen[imported] {
				return nil, fmt.Errorf("the files lack %s, which %s imports; protoc adds imports with -include_imports", imported, file.GetName())
			}
		}
	}
	return protodesc.NewFiles(all)
}

// Local returns a connection to a server in this process, whose reflection describes files. The
// function stop stops the server.
func Local(files *protoregistry.Files) (conn grpc.ClientConnInterface, stop func()) {
	srv := nearcall.NewServer()
	rpb.RegisterServerReflectionServer(srv, reflection.NewServerV1(reflection.ServerOptions{
		Services: servicesOf{files}, DescriptorResolver: files, ExtensionResolver: typesOf{dynamicpb.NewTypes(files)},
	}))
	client := srv.Client()
	return client, func() {
		_ = client.Close()
		srv.Stop()
	}
}

type servicesOf struct{ *protoregistry.Files }

// GetServiceInfo implements [reflection.ServiceInfoProvider].
func (f servicesOf) GetServiceInfo() map[string]grpc.ServiceInfo {
	all := make(map[string]grpc.ServiceInfo)
	f.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			all[string(file.Services().Get(i).FullName())] = grpc.ServiceInfo{}
		}
		return true
	})
	return all
}

type typesOf struct{ *dynamicpb.Types }

// RangeExtensionsByMessage implements [reflection.ExtensionResolver]. The client does not ask for
// all extensions of a message.
func (typesOf) RangeExtensionsByMessage(protoreflect.FullName, func(protoreflect.ExtensionType) bool) {
}
