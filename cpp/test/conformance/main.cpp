// checks TARGET [NAME...]: runs the checks, or those that are named, and prints what failed. `tls:HOST:PORT` is TCP with TLS;
// NEARCALL_TLS is a directory with the server's certificate.pem.
#include <nearcall/tls.hpp>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "checks.hpp"

namespace nearcall::test {

std::vector<check>& checks() {
  static std::vector<check> list;
  return list;
}

void world::expect(bool ok, const std::string& what, const char* file, int line) {
  if (ok) return;
  failures++;
  const char* base = std::strrchr(file, '/');
  std::printf("    %s:%d: %s\n", base ? base + 1 : file, line, what.c_str());
}

}  // namespace nearcall::test

int main(int argc, char** argv) {
  using namespace nearcall;
  using namespace nearcall::test;
  std::signal(SIGPIPE, SIG_IGN);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 2) {
    std::printf("usage: checks TARGET [NAME...]\n");
    return 2;
  }
  std::string target = argv[1];
  channel_options options;
  if (target.starts_with("unix:")) options.max_shared_memory = 0;
  if (target.starts_with("tls:")) {
    options.credentials = tls_for_clients({.authorities = read_pem(std::getenv("NEARCALL_TLS") + std::string("/certificate.pem"))});
    target.replace(0, 3, "tcp");
  }
  int failed = 0, ran = 0;
  for (check& c : checks()) {
    bool wanted = argc == 2;
    for (int i = 2; i < argc; i++) wanted |= std::string(c.name).find(argv[i]) != std::string::npos;
    if (!wanted) continue;
    driver d;
    echo_service own;  // for calls of the server
    options.services = {&own};
    channel ch(d, target, options);
    world w{d, target, options, ch, Echo_stub(ch)};
    d.run(c.run(w));
    ran++;
    if (w.failures == 0) continue;
    failed++;
    std::printf("FAILED %s over %s\n", c.name, target.c_str());
  }
  std::printf("%d checks, %d failed\n", ran, failed);
  return failed || !ran;
}
