// All of nearcall that needs no other libraries.
#pragma once

#include <nearcall/call.hpp>
#include <nearcall/channel.hpp>
#include <nearcall/driver.hpp>
#include <nearcall/health.hpp>
#include <nearcall/metadata.hpp>
#include <nearcall/pool.hpp>
#include <nearcall/scope.hpp>
#include <nearcall/server.hpp>
#include <nearcall/status.hpp>
#include <nearcall/task.hpp>
