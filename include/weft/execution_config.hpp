/* weft/execution_config.hpp - which implementation of senders and receivers weft/execution.hpp is compiled against.
 *
 * Without a macro it is std::execution where the library has it (__cpp_lib_senders), else stdexec where its headers are found.
 *
 *     -DWEFT_STDEXEC                     stdexec, though std::execution is there
 *     -DWEFT_EXECUTION_HEADER='<h>'      another: the header, and the namespace that all of its names are in
 *     -DWEFT_EXECUTION_NAMESPACE=name
 *     -DWEFT_EXECUTION_OLD_TAGS          its tags are sender_t and the like, as before P4154, and not sender_tag
 *
 * weft::execution::impl is the namespace of std::execution's names there, and impl_std of those that are in std itself
 * (get_stop_token and the tokens). All sources of a program have to choose the same. */
#ifndef WEFT_EXECUTION_CONFIG_HPP
#define WEFT_EXECUTION_CONFIG_HPP

#include <version>

#if defined(WEFT_EXECUTION_HEADER)
#include WEFT_EXECUTION_HEADER
namespace weft::execution {
namespace impl = ::WEFT_EXECUTION_NAMESPACE;
namespace impl_std = ::WEFT_EXECUTION_NAMESPACE;
} // namespace weft::execution
#elif defined(__cpp_lib_senders) && !defined(WEFT_STDEXEC)
#include <execution>
#include <stop_token>
namespace weft::execution {
namespace impl = ::std::execution;
namespace impl_std = ::std;
} // namespace weft::execution
#elif defined(WEFT_STDEXEC) || __has_include(<stdexec/execution.hpp>)
#include <stdexec/execution.hpp>
namespace weft::execution {
namespace impl = ::stdexec;
namespace impl_std = ::stdexec;
} // namespace weft::execution
#else
#error "weft/execution.hpp needs senders: a library of C++26, or stdexec (github.com/NVIDIA/stdexec) where includes are found"
#endif

namespace weft::execution::detail {

#if defined(WEFT_EXECUTION_OLD_TAGS)
using sender_tag = impl::sender_t;
using receiver_tag = impl::receiver_t;
using operation_state_tag = impl::operation_state_t;
using scheduler_tag = impl::scheduler_t;
#else
using sender_tag = impl::sender_tag;
using receiver_tag = impl::receiver_tag;
using operation_state_tag = impl::operation_state_tag;
using scheduler_tag = impl::scheduler_tag;
#endif

} // namespace weft::execution::detail

#endif
