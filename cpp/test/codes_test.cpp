// Statuses and metadata at their ends, as gRPC's Go programs see them, and details.
#include <gtest/gtest.h>
#include <nearcall/details.hpp>
#include <nearcall/nearcall.hpp>

#include <google/protobuf/wrappers.pb.h>

#include <limits>

#include <unistd.h>

#include "echo_service.hpp"
#include "wire/block.hpp"

namespace nearcall::test {
namespace {

/// Ends its calls as the test says.
struct ending_service : echo_service {
  status ends;
  metadata header, trailer;
  task<status> Unary(context& c, const Message&, Message&) override {
    c.header() = header;
    c.trailer() = trailer;
    return ends;
  }
};

class Codes : public testing::Test {
 protected:
  driver d;
  ending_service service;
  server s{d};
  std::optional<channel> ch;
  Codes() {
    s.add(service);
    std::string path = "unix:@nearcall-codes-" + std::to_string(::getpid());
    EXPECT_TRUE(s.listen(path).ok());
    ch.emplace(d, path);
  }
  result<Message> call(status ends, metadata header = {}, metadata trailer = {}) {
    service.ends = std::move(ends);
    service.header = std::move(header);
    service.trailer = std::move(trailer);
    return sync_wait(d, Echo_stub(*ch).Unary(Message()));
  }
};

constexpr std::size_t MB = 1 << 20;

TEST_F(Codes, DetailsThatDoNotFitAreLeftOut) {
  std::string good("\x08\x05\x12\x01y", 5);
  EXPECT_EQ(call({code::not_found, "x", good}).status().details(), good);
  for (std::string details : {std::string("garbage"), std::string("\x08\x03\x12\x01y", 5), std::string("\x08\x05\x12\x02y", 5), std::string(17 * MB, '\0'), good + "\x1a" + std::string("\x80\x80\x80\x08", 4) + std::string(16 * MB, 'x')}) {
    auto r = call({code::not_found, "x", details});
    EXPECT_EQ(r.status().to_string(), "NotFound: x");
    EXPECT_TRUE(r.status().details().empty());
  }
  auto r = call({code::not_found, "x\xff", good});
  EXPECT_EQ(r.status().to_string(), "NotFound: x\xef\xbf\xbd");
  EXPECT_TRUE(r.status().details().empty());
}

TEST_F(Codes, OfLargeTextsAndMetadata) {
  EXPECT_TRUE(call({code::not_found, std::string(6 * MB, 'x')}).status().message() == std::string(6 * MB, 'x'));
  EXPECT_EQ(call({code::not_found, std::string(17 * MB, 'x')}).status().code(), code::internal);
  EXPECT_TRUE(call({}, {{"a", std::string(2 * MB, 'x')}}).ok());
  EXPECT_EQ(call({}, {{"a", std::string(17 * MB, 'x')}}).status().code(), code::internal);
  EXPECT_EQ(call({}, {}, {{"a", std::string(17 * MB, 'x')}}).status().code(), code::internal);
  EXPECT_TRUE(call({}).ok());
}

TEST_F(Codes, OfNumbersThatGrpcDoesNotHave) {
  EXPECT_EQ(call({code(99), "x"}).status().to_string(), "Code(99): x");
  EXPECT_EQ(call({code(std::numeric_limits<std::int32_t>::max()), "x"}).status().to_string(), "Code(2147483647): x");
  auto r = call({code(-1), "x"}, {}, {{"a", "t"}});
  EXPECT_EQ(r.status().to_string(), "Unknown: transport: malformed grpc-status: strconv.ParseInt: parsing \"4294967295\": value out of range");
  EXPECT_TRUE(r.trailer().empty());
}

TEST_F(Codes, OfWrongMetadata) {
  std::string value = "Internal: header key \"a\" contains value with non-printable ASCII characters";
  for (const char* v : {"\xff", "\t", "a\nb", "\x7f"}) {
    EXPECT_EQ(sync_wait(d, Echo_stub(*ch).Unary(Message(), {.md = {{"a", v}}})).status().to_string(), value);
    EXPECT_EQ(call({}, {{"a", v}}).status().to_string(), value);
  }
  for (std::string k : {"ABC", "a!b", "a b"}) {
    std::string key = "Internal: header key \"" + k + "\" contains illegal characters not in [0-9a-z-_.]";
    EXPECT_EQ(sync_wait(d, Echo_stub(*ch).Unary(Message(), {.md = {{k, "v"}}})).status().to_string(), key);
    EXPECT_EQ(call({}, {{k, "v"}}).status().to_string(), key);
  }
  EXPECT_EQ(call({}, {{"", "v"}}).status().to_string(), "Internal: there is an empty key in the header");
  // gRPC checks trailers less strictly.
  EXPECT_TRUE(call({}, {}, {{"a", "\xff"}, {"a!b", "\t"}}).ok());
  EXPECT_EQ(call({}, {}, {{"a", "x\ny"}}).status().to_string(), "Internal: invalid header field value for \"a\"");
  EXPECT_EQ(call({}, {}, {{"ABC", "x"}}).status().to_string(), "Internal: invalid header field name \"ABC\"");
  // Keys that are gRPC's own are left out.
  service.header = service.trailer = {};
  EXPECT_EQ(sync_wait(d, Echo_stub(*ch).Unary(Message(), {.md = {{":path", "v"}}})).status().to_string(), "OK");
  auto r = call({}, {{":path", "v"}, {"te", "v"}}, {{":path", "v"}});
  EXPECT_TRUE(r.ok() && r.header().empty() && r.trailer().empty()) << r.status().to_string();
}

// Debian's protobuf was not built for ThreadSanitizer.
#ifndef __SANITIZE_THREAD__
TEST_F(Codes, DetailsAreMessages) {
  Message violation;
  violation.set_data("empty");
  google::protobuf::Int32Value retry;
  retry.set_value(7);
  auto r = call(with_details({code::invalid_argument, "no items"}, violation, retry));
  EXPECT_EQ(r.status().to_string(), "InvalidArgument: no items");
  auto all = details_of(r.status());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].type_url(), "type.googleapis.com/nearcall.test.Message");
  auto found = detail_of<google::protobuf::Int32Value>(r.status());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->value(), 7);
  EXPECT_EQ(detail_of<Message>(r.status())->data(), "empty");
  EXPECT_FALSE(detail_of<google::protobuf::StringValue>(r.status()));
  // Another code or text keeps them.
  EXPECT_EQ(details_of(call(with_details({code::not_found, "x\xff"}, all)).status()).size(), 2u);
  EXPECT_TRUE(with_details(status(), retry).ok());
  EXPECT_TRUE(details_of({code::not_found, "x", "garbage"}).empty());
}
#endif

/// A limit may be as large as a size_t.
TEST_F(Codes, OfCompressedMessagesWithoutALimit) {
  struct : echo_service {
  } echo;
  server plain(d, {.max_receive = std::numeric_limits<std::size_t>::max()});
  plain.add(echo);
  std::string path = "unix:@nearcall-codes-unlimited-" + std::to_string(::getpid());
  ASSERT_TRUE(plain.listen(path).ok());
  channel unlimited(d, path, {.max_receive = std::numeric_limits<std::size_t>::max()});
  Message q;
  q.set_data(std::string(100000, 'x'));
  auto r = sync_wait(d, Echo_stub(unlimited).Unary(q, {.compressor = "gzip"}));
  EXPECT_TRUE(r.ok() && r->data() == q.data()) << r.status().to_string();
}

}  // namespace
}  // namespace nearcall::test
