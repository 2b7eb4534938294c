/* weft/elements.h - all of libweft-elements: memory of servers, mirrors of it, and elements. Link with -lweft-elements -lweft. */
#ifndef WEFT_ELEMENTS_H
#define WEFT_ELEMENTS_H
#include <weft/element.h>
#include <weft/mirror.h>
#include <weft/store.h>
#endif
