/* tests/cpp/kit/kit.hpp - all of the kit: a small implementation of senders and receivers, against which weft/execution.hpp is
 * compiled where there is none. */
#ifndef KIT_KIT_HPP
#define KIT_KIT_HPP

#include "kit/many.hpp"

#endif
