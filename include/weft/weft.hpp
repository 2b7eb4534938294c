/* weft/weft.hpp - all of Weft for C++ but senders (weft/execution.hpp) and Asio (weft/asio.hpp). */
#ifndef WEFT_WEFT_HPP
#define WEFT_WEFT_HPP

#include <weft/conn.hpp>
#include <weft/msg.hpp>
#include <weft/rpc.hpp>
#include <weft/runtime.hpp>
#include <weft/service.hpp>
#include <weft/task.hpp>

#endif
