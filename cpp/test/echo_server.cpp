// echo_server TARGET...: serves the tests' service until SIGTERM. `tls:HOST:PORT` is TCP with TLS; NEARCALL_TLS is a directory with
// certificate.pem and key.pem.
#include <nearcall/nearcall.hpp>
#include <nearcall/tls.hpp>

#include <csignal>
#include <cstdio>

#include "echo_service.hpp"
#include "interop_service.hpp"

using namespace nearcall;

static driver* running;

int main(int argc, char** argv) {
  driver d;
  running = &d;
  std::signal(SIGTERM, [](int) { running->stop(); });
  std::signal(SIGPIPE, SIG_IGN);
  test::echo_service echo;
  test::interop_service interop;
  health h;
  h.set_status("nearcall.test.Echo", health::serving);
  server s(d);
  s.add(echo);
  s.add(interop);
  s.add(h);
  for (int i = 1; i < argc; i++) {
    std::string target = argv[i];
    credentials c;
    if (target.starts_with("tls:")) {
      std::string dir = std::getenv("NEARCALL_TLS");
      c = tls_for_servers({.certificate = read_pem(dir + "/certificate.pem"), .key = read_pem(dir + "/key.pem")});
      target.replace(0, 3, "tcp");
    }
    if (status st = s.listen(target, c); !st.ok()) {
      std::fprintf(stderr, "%s\n", st.to_string().c_str());
      return 1;
    }
  }
  std::printf("ready %d\n", s.port());
  std::fflush(stdout);
  d.run();
  d.run(s.graceful_stop(std::chrono::seconds(5)));
}
