// echo_server TARGET...: serves the tests' service until SIGTERM.
#include <nearcall/nearcall.hpp>

#include <csignal>
#include <cstdio>

#include "echo_service.hpp"

using namespace nearcall;

static driver* running;

int main(int argc, char** argv) {
  driver d;
  running = &d;
  std::signal(SIGTERM, [](int) { running->stop(); });
  std::signal(SIGPIPE, SIG_IGN);
  test::echo_service echo;
  server s(d);
  s.add(echo);
  for (int i = 1; i < argc; i++)
    if (status st = s.listen(argv[i]); !st.ok()) {
      std::fprintf(stderr, "%s\n", st.to_string().c_str());
      return 1;
    }
  std::printf("ready %d\n", s.port());
  std::fflush(stdout);
  d.run();
  d.run(s.graceful_stop(std::chrono::seconds(5)));
}
