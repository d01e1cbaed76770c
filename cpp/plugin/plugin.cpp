// protoc-gen-nearcall_cpp: the stubs and services of a .proto file, as FILE.nearcall.hpp beside protoc's FILE.pb.h.
#include <google/protobuf/compiler/code_generator.h>
#include <google/protobuf/compiler/plugin.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/printer.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <map>
#include <memory>
#include <string>

namespace protobuf = google::protobuf;

namespace {

using variables = std::map<std::string, std::string>;

/// Names are std::string up to protobuf 29, and absl::string_view from 30 on.
template <class S>
std::string text(const S& s) {
  return std::string(s);
}

std::string replace_all(std::string s, const std::string& what, const std::string& with) {
  for (std::size_t at = 0; (at = s.find(what, at)) != s.npos; at += with.size()) s.replace(at, what.size(), with);
  return s;
}

/// The C++ name of a message; nested types are Outer_Inner, as protoc names them.
std::string message_name(const protobuf::Descriptor* d) {
  std::string name = text(d->name());
  for (auto* outer = d->containing_type(); outer; outer = outer->containing_type()) name = text(outer->name()) + "_" + name;
  std::string package = text(d->file()->package());
  return "::" + (package.empty() ? "" : replace_all(package, ".", "::") + "::") + name;
}

template <class D>
void print_comments(protobuf::io::Printer& p, const D* d, const std::string& indent) {
  protobuf::SourceLocation at;
  if (!d->GetSourceLocation(&at)) return;
  const std::string& s = at.leading_comments;
  for (std::size_t begin = 0, end; begin < s.size(); begin = end + 1) {
    end = std::min(s.find('\n', begin), s.size());
    p.PrintRaw(indent + "//" + s.substr(begin, end - begin) + "\n");
  }
}

std::string kind(const protobuf::MethodDescriptor* m) {
  if (m->client_streaming()) return m->server_streaming() ? "bidi" : "client_streaming";
  return m->server_streaming() ? "server_streaming" : "unary";
}

variables of(const protobuf::MethodDescriptor* m) {
  std::string k = kind(m), request = message_name(m->input_type()), reply = message_name(m->output_type());
  variables v{{"name", text(m->name())},
              {"path", "/" + text(m->service()->full_name()) + "/" + text(m->name())},
              {"kind", k},
              {"request", request},
              {"reply", reply}};
  if (k == "unary") {
    v["call"] = "::nearcall::unary_call<" + reply + ">";
    v["parameters"] = "::nearcall::context&, const " + request + "&, " + reply + "&";
  } else if (k == "server_streaming") {
    v["call"] = "::nearcall::server_stream<" + reply + ">";
    v["parameters"] = "::nearcall::context&, const " + request + "&, ::nearcall::writer<" + reply + ">&";
  } else if (k == "client_streaming") {
    v["call"] = "::nearcall::client_stream<" + request + ", " + reply + ">";
    v["parameters"] = "::nearcall::context&, ::nearcall::reader<" + request + ">&, " + reply + "&";
  } else {
    v["call"] = "::nearcall::bidi_stream<" + request + ", " + reply + ">";
    v["parameters"] = "::nearcall::context&, ::nearcall::stream<" + request + ", " + reply + ">&";
  }
  bool bidi = k == "bidi";
  v["lambda"] = bidi ? "auto& c, auto& s" : "auto& c, auto& q, auto& r";
  v["arguments"] = bidi ? "c, s" : "c, q, r";
  return v;
}

void print_stub(protobuf::io::Printer& p, const protobuf::ServiceDescriptor* s) {
  print_comments(p, s, "");
  p.Print(variables{{"service", text(s->name())}},
          "///\n"
          "/// A client's view of the service. It is cheap to copy.\n"
          "class $service$_stub {\n"
          " public:\n"
          "  explicit $service$_stub(::nearcall::detail::caller& on) : on_(&on) {}\n\n");
  for (int i = 0; i < s->method_count(); i++) {
    auto* m = s->method(i);
    print_comments(p, m, "  ");
    if (m->client_streaming())
      p.Print(of(m), "  $call$ $name$(const ::nearcall::call_options& o = {}) const { return {*on_, \"$path$\", o}; }\n");
    else
      p.Print(of(m),
              "  $call$ $name$(const $request$& request, const ::nearcall::call_options& o = {}) const {\n"
              "    return {*on_, \"$path$\", request, o};\n"
              "  }\n");
  }
  p.Print("\n private:\n  ::nearcall::detail::caller* on_;\n};\n\n");
}

/// The methods' descriptions, for server::on.
void print_methods(protobuf::io::Printer& p, const protobuf::ServiceDescriptor* s) {
  p.Print(variables{{"service", text(s->name())}}, "/// The methods of $service$, for nearcall::server::on.\nstruct $service$ {\n");
  for (int i = 0; i < s->method_count(); i++) {
    auto* m = s->method(i);
    variables v = of(m);
    v["from"] = m->client_streaming() ? "true" : "false";
    v["to"] = m->server_streaming() ? "true" : "false";
    p.Print(v, "  static constexpr ::nearcall::method<$request$, $reply$, $from$, $to$> $name${\"$path$\"};\n");
  }
  p.Print("};\n\n");
}

void print_service(protobuf::io::Printer& p, const protobuf::ServiceDescriptor* s) {
  p.Print(variables{{"service", text(s->name())}},
          "/// The service of $service$. Override what is served; the other methods are Unimplemented.\n"
          "class $service$_service : public ::nearcall::service {\n"
          " public:\n");
  for (int i = 0; i < s->method_count(); i++)
    p.Print(of(s->method(i)),
            "  virtual ::nearcall::task<::nearcall::status> $name$($parameters$) {\n"
            "    return ::nearcall::status(::nearcall::code::unimplemented, \"method $name$ not implemented\");\n"
            "  }\n");
  p.Print("\n  void add_to(::nearcall::detail::method_table& t) override {\n");
  for (int i = 0; i < s->method_count(); i++)
    p.Print(of(s->method(i)), "    t.$kind$<$request$, $reply$>(\"$path$\", [this]($lambda$) { return $name$($arguments$); });\n");
  p.Print("  }\n};\n\n");
}

class generator final : public protobuf::compiler::CodeGenerator {
  std::uint64_t GetSupportedFeatures() const override {
#if GOOGLE_PROTOBUF_VERSION >= 5027000
    return FEATURE_PROTO3_OPTIONAL | FEATURE_SUPPORTS_EDITIONS;
  }
  protobuf::Edition GetMinimumEdition() const override { return protobuf::Edition::EDITION_PROTO2; }
  protobuf::Edition GetMaximumEdition() const override {
    return protobuf::Edition::EDITION_2024;
#else
    return FEATURE_PROTO3_OPTIONAL;
#endif
  }

  bool Generate(const protobuf::FileDescriptor* f, const std::string&, protobuf::compiler::GeneratorContext* to, std::string*) const override {
    std::string file = text(f->name()), base = file.substr(0, file.rfind('.')), package = text(f->package());
    std::unique_ptr<protobuf::io::ZeroCopyOutputStream> out(to->Open(base + ".nearcall.hpp"));
    protobuf::io::Printer p(out.get(), '$');
    p.Print(variables{{"file", file}, {"base", base}},
            "// Generated by protoc-gen-nearcall_cpp from $file$. DO NOT EDIT.\n"
            "#pragma once\n\n"
            "#include <nearcall/call.hpp>\n"
            "#include <nearcall/server.hpp>\n\n"
            "#include \"$base$.pb.h\"\n\n");
    std::string space = replace_all(package, ".", "::");
    if (!space.empty()) p.Print(variables{{"space", space}}, "namespace $space$ {\n\n");
    for (int i = 0; i < f->service_count(); i++) {
      print_stub(p, f->service(i));
      print_service(p, f->service(i));
      print_methods(p, f->service(i));
    }
    if (!space.empty()) p.Print(variables{{"space", space}}, "}  // namespace $space$\n");
    return true;
  }
};

}  // namespace

int main(int argc, char** argv) {
  generator g;
  return protobuf::compiler::PluginMain(argc, argv, &g);
}
