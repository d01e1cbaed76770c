// What the peers of the tournament have in common: how a row is timed, and the data that is sent.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

using clock = std::chrono::steady_clock;

constexpr int messages = 100;  // of a stream
constexpr int callers = 64;

/// What `peer call TARGET ROW SECONDS` was asked for.
struct request {
  std::string target, row;
  std::chrono::duration<double> span;
};

inline void require(bool ok, std::string_view what) {
  if (ok) return;
  std::cerr << "the peer failed: " << what << "\n";
  std::exit(1);
}

/// The size of the message of a row.
inline std::size_t size_of(std::string_view row) {
  return row == "1MB" ? std::size_t(1) << 20 : row == "10MB" ? std::size_t(10) << 20 : 32;
}

/// A clock for a loop of operations: `while (t.goes_on()) operation();` then t.print(). It leaves out the first tenth of the time. For the
/// row `tail` it keeps the time of each operation.
class timing {
 public:
  explicit timing(const request& r) : tail_(r.row == "tail"), begin_(clock::now()), warm_(begin_ + part(r.span, 0.1)), end_(begin_ + part(r.span, 1.1)) {}
  bool goes_on() {
    auto now = clock::now();
    if (now < warm_ || done_ < 2) {
      begin_ = now;
      first_ = done_;
    } else if (tail_) {
      each_.push_back(std::chrono::duration<float, std::micro>(now - last_).count());
    }
    last_ = now;
    return done_++ < first_ + 3 || now < end_;
  }
  /// Prints microseconds for each operation; or the median, p99, p99.9 and the longest.
  void print() {
    if (!tail_) {
      std::printf("%.3f\n", std::chrono::duration<double, std::micro>(last_ - begin_).count() / double(done_ - 1 - first_));
      return;
    }
    std::sort(each_.begin(), each_.end());
    auto at = [&](double p) { return each_[std::size_t(p * double(each_.size() - 1))]; };
    std::printf("%.3f %.3f %.3f %.3f\n", at(0.5), at(0.99), at(0.999), at(1));
  }

 private:
  static clock::duration part(std::chrono::duration<double> d, double of) { return std::chrono::duration_cast<clock::duration>(d * of); }
  bool tail_;
  std::vector<float> each_;
  clock::time_point begin_, warm_, end_, last_;
  long done_ = 0, first_ = 0;
};


struct employee {
  std::string name = "Ada Lovelace", email = "ada@example.com", street = "12 St James's Square", city = "London", country = "United Kingdom";
  unsigned age = 36, zip = 10115;
  std::uint64_t id = 1001;
  double salary = 75000.5;
  std::vector<std::string> skills = {"C++", "Python", "JavaScript", "Rust", "Go"};
};
template <class M>
M employee_message() {
  employee e;
  M m;
  m.mutable_person()->set_name(e.name);
  m.mutable_person()->set_age(e.age);
  m.mutable_person()->set_email(e.email);
  m.mutable_address()->set_street(e.street);
  m.mutable_address()->set_city(e.city);
  m.mutable_address()->set_country(e.country);
  m.mutable_address()->set_zip(e.zip);
  m.set_id(e.id);
  m.set_salary(e.salary);
  for (auto& s : e.skills) m.add_skills(s);
  return m;
}

/// `peer serve TARGET` prints the target that clients use, once it is served; `peer call TARGET ROW SECONDS` prints a figure.
template <class Serve, class Call>
int run(int argc, char** argv, Serve serve, Call call) {
  std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "serve" && argc == 3) return serve(std::string(argv[2])), 0;
  if (mode == "call" && argc == 5) {
    call(request{argv[2], argv[3], std::chrono::duration<double>(std::atof(argv[4]))});
    std::fflush(stdout);
    std::_Exit(0);  // gRPC 1.51 sometimes takes 10 s to leave
  }
  std::cerr << "usage: " << argv[0] << " serve TARGET | call TARGET ROW SECONDS\n";
  return 2;
}

}  // namespace bench
