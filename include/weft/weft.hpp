/* weft/weft.hpp - all of Weft for C++ but senders (weft/execution.hpp) and Asio (weft/asio.hpp). */
#ifndef WEFT_WEFT_HPP
#define WEFT_WEFT_HPP

#include <weft/am.hpp>
#include <weft/conn.hpp>
#include <weft/error.hpp>
#include <weft/generator.hpp>
#include <weft/memory.hpp>
#include <weft/msg.hpp>
#include <weft/op.hpp>
#include <weft/rma.hpp>
#include <weft/rpc.hpp>
#include <weft/runtime.hpp>
#include <weft/scope.hpp>
#include <weft/service.hpp>
#include <weft/task.hpp>
#include <weft/tensor.hpp>
#include <weft/when.hpp>

#endif
