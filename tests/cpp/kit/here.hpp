/* tests/cpp/kit/here.hpp - the implementation that a test is compiled against, as namespace ex: the kit, or with -DWEFT_STDEXEC
 * stdexec. Include it before weft/execution.hpp. */
#ifndef KIT_HERE_HPP
#define KIT_HERE_HPP

#if defined(WEFT_STDEXEC)
#include <exec/repeat_until.hpp>
#include <exec/timed_scheduler.hpp>
#include <exec/when_any.hpp>
#include <stdexec/execution.hpp>
namespace ex {
using namespace ::stdexec;
using ::exec::repeat_until;
using ::exec::when_any;
} // namespace ex
#else
#define WEFT_EXECUTION_HEADER "kit/kit.hpp"
#define WEFT_EXECUTION_NAMESPACE kit
#include "kit/kit.hpp"
namespace ex = ::kit;
#endif

#include <weft/execution.hpp>

#endif
