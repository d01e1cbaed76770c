// Watches a feed of prices in the event loop of Qt, beside a timer of Qt, on one thread. A program with windows does the same.
//
//     go -C interop/cpp run ./feed unix:/tmp/feed.sock   the server, in Go
//     build/examples/qt/prices unix:/tmp/feed.sock ACME          this client, until ten ticks have come
#include <nearcall/nearcall.hpp>

#include <QCoreApplication>
#include <QSocketNotifier>
#include <QTextStream>
#include <QTimer>

#include <string>

#include "feed.nearcall.hpp"

namespace {

/// A driver whose turns Qt's loop takes: when the driver's descriptor is readable.
class qt_driver : public nearcall::driver {
 public:
  qt_driver() : notifier_(fd(), QSocketNotifier::Read) {
    QObject::connect(&notifier_, &QSocketNotifier::activated, [this] {
      for (int i = 0; i < 64; i++)
        if (!poll()) return;
    });
    while (poll()) {
    }
  }

 private:
  QSocketNotifier notifier_;
};

nearcall::task<> watch(feed::Feed_stub stub, std::string symbol, QTextStream& out) {
  feed::WatchRequest q;
  q.set_symbol(symbol);
  q.set_rate(20);
  auto feed = stub.Watch(q);
  int ticks = 0;
  while (auto* tick = co_await feed.read()) {
    out << QString::fromStdString(symbol) << " " << tick->price() << Qt::endl;
    if (++ticks == 10) break;  // the call is cancelled when `feed` is destroyed
  }
  if (ticks < 10) out << "the feed has ended: " << QString::fromStdString(feed.status().to_string()) << Qt::endl;
  QCoreApplication::quit();
}

}  // namespace

int main(int argc, char** argv) {
  QCoreApplication app(argc, argv);
  QTextStream out(stdout);
  if (argc != 3) {
    out << "usage: prices TARGET SYMBOL" << Qt::endl;
    return 2;
  }
  qt_driver d;
  nearcall::channel ch(d, argv[1]);
  auto watching = watch(feed::Feed_stub(ch), argv[2], out);
  watching.start();

  QTimer timer;
  QObject::connect(&timer, &QTimer::timeout, [&] { out << "a timer of Qt" << Qt::endl; });
  timer.start(200);
  return QCoreApplication::exec();
}
