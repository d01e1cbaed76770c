// The test vectors of internal/transport/shm/testdata.
#include "vectors.hpp"

#include <functional>

#include "shm/handshake.hpp"
#include "shm/ring.hpp"

namespace nearcall::detail {
namespace {

TEST(Vectors, HandshakesOfSharedMemory) {
  for (auto& h : load("transport/shm/testdata/handshakes.json"))
    for (auto& said : h["says"]) {
      SCOPED_TRACE(said.dump());
      std::string bytes = unhex(said["hex"].get<std::string>());
      if (bytes.size() == 1) continue;  // the client's verdict
      shm::offer o;
      shm::answer a;
      const char* wrong = nullptr;
      bool offers = said["from"] == "client";
      for (std::size_t n = 0; n <= bytes.size(); n++) {
        std::string_view begun = std::string_view(bytes).substr(0, n);
        std::size_t due;
        shm::progress p = offers ? shm::read_offer(begun, due, o) : shm::read_answer(begun, due, a, wrong);
        EXPECT_EQ(p, n < bytes.size() ? shm::progress::more : shm::progress::complete);
        EXPECT_EQ(wrong, nullptr);
        EXPECT_TRUE(n < bytes.size() ? due > n && due <= bytes.size() : due == n) << due;
      }
      auto number = [&](const char* name) { return said.value(name, std::uint64_t(0)); };
      if (offers) {
        EXPECT_EQ(o.version, number("version"));
        EXPECT_EQ(o.features, number("features"));
        if (o.version == 1) EXPECT_EQ(hex(shm::format(o)), said["hex"].get<std::string>());
        continue;
      }
      EXPECT_EQ(a.accepted, said["verdict"] == "+");
      EXPECT_EQ(a.why, said.value("why", ""));
      EXPECT_EQ(a.ring, number("ring"));
      EXPECT_EQ(a.slabs, number("slabs"));
      EXPECT_EQ(hex(shm::format(a)), said["hex"].get<std::string>());
    }
}

TEST(Vectors, LayoutsOfSharedMemory) {
  for (auto& v : load("transport/shm/testdata/layouts.json")) {
    shm::layout l(v["ring"], v["slabs"]);
    json got = {{"ring", l.ring}, {"slabs", l.slabs}, {"server segment", l.segment[0]}, {"client segment", l.segment[1]},
                {"server slabs", l.slab_area[0]}, {"client slabs", l.slab_area[1]}, {"end", l.length}};
    EXPECT_EQ(got, v);
  }
}

/// Both sides of a ring, from the client to the server.
TEST(Vectors, WordsOfSharedMemory) {
  json v = load("transport/shm/testdata/words.json");
  std::size_t ring = v["ring"];
  shm::layout l(ring, 0);
  std::string error;
  descriptor fd = shm::make_memory(l, error);
  ASSERT_TRUE(fd) << error;
  auto map = [&](int side, bool writable) { return shm::mapping::of(fd.get(), l.segment[side], shm::control_page + ring, writable); };
  shm::rings server(map(0, true), map(1, false), ring), client(map(1, true), map(0, false), ring);
  ASSERT_TRUE(server.begin() && client.begin());
  std::map<std::string, shm::mapping> sees;  // each side's, as the other side maps it
  sees["server"] = map(0, false);
  sees["client"] = map(1, false);

  std::string pattern, sent, rings;
  while (pattern.size() < ring) pattern += "0123456789abcdef";
  bool wake_peer;
  auto write = [&](std::string bytes) {
    iovec stretch{bytes.data(), bytes.size()};
    std::size_t n = client.write({&stretch, 1}, wake_peer);
    if (wake_peer) rings = "data";
    return n;
  };
  auto sends = [&](const std::string& bytes) {
    return [&, bytes] {
      EXPECT_EQ(write(bytes), bytes.size());
      sent += bytes;
    };
  };
  auto receives = [&](std::size_t n) {
    return [&, n] {
      input in;
      EXPECT_EQ(server.read(in, wake_peer, n), n);
      if (wake_peer) rings = "room";
      EXPECT_EQ(in.view(), sent.substr(0, n));
      sent.erase(0, n);
    };
  };
  auto finds_no_room = [&] { EXPECT_EQ(write("more"), 0u); };
  auto sleeps = [&] { EXPECT_TRUE(server.fall_asleep()); };
  auto wakes = [&] { server.wake_up(); };
  const std::map<std::string, std::function<void()>> steps{
      {"the server has made the memory", [] {}},
      {"the client sends its line", sends("nearcall/1\n")},
      {"the server receives it", receives(11)},
      {"the server finds nothing, and sleeps", sleeps},
      {"the client fills the ring, round its end", sends(pattern)},
      {"the client finds no room, and waits for some", finds_no_room},
      {"the server wakes", wakes},
      {"the server receives a quarter of the ring", receives(ring / 4)},
      {"the server receives another quarter", receives(ring / 4)},
      {"the client wakes", [&] { client.room_woken(); }},
      {"the server receives the rest", receives(ring / 2)},
      {"the server sleeps again", sleeps},
      {"the client sends a byte", sends("x")},
      {"the client fills the ring again, in the same sleep of the server", sends(pattern.substr(0, ring - 1))},
      {"the client waits for room a second time", finds_no_room},
      {"the server wakes again", wakes},
      {"the server receives half of the ring", receives(ring / 2)},
      {"the server receives more before the client wakes", receives(ring / 4)},
      {"the client wakes again", [&] { EXPECT_EQ(client.write({}, wake_peer), 0u); }},  // here without having received the wake-up
  };
  for (auto& step : v["steps"]) {
    SCOPED_TRACE(step["does"]);
    rings.clear();
    steps.at(step["does"])();
    if (client.waits_for_room() && sent.size() > ring / 2) finds_no_room();  // as long as it waits
    EXPECT_EQ(rings, step.value("rings", ""));
    for (auto& [side, page] : sees)
      for (auto& [word, at] : {std::pair("asleep", shm::at_asleep), {"head", shm::at_head}, {"tail", shm::at_tail}, {"wants", shm::at_wants}})
        EXPECT_EQ(page.word(at).load(), step[side][word].get<std::uint64_t>()) << side << "'s " << word;
  }
  EXPECT_EQ(v["steps"].size(), steps.size());
  for (auto& [side, page] : sees) {
    json words;
    for (std::size_t at = 0; at < shm::control_page; at += 8)
      if (page.word(at).load()) words.push_back(std::to_string(at) + ": " + hex({page.bytes() + at, 8}));
    EXPECT_EQ(words, v["pages"][side]);
  }
  std::string_view bytes(sees["client"].bytes() + shm::control_page, ring);
  EXPECT_EQ(bytes.substr(0, 16), v["client's ring begins"].get<std::string>());
  EXPECT_EQ(bytes.substr(ring - 16), v["and ends"].get<std::string>());
}

}  // namespace
}  // namespace nearcall::detail
