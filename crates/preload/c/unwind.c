/* Panics end the process, and nothing here is ever unwound: these stand in for the library that
 * would do it, which needs what not every C library has. */
#include <stdlib.h>

#define NOTHING(name)                                                                         \
    __attribute__((visibility("hidden"))) void *name(void) { return 0; }
#define NEVER(name)                                                                           \
    __attribute__((visibility("hidden"))) void name(void) { abort(); }
/* A trace of calls is empty. */
NOTHING(_Unwind_Backtrace)
NOTHING(_Unwind_FindEnclosingFunction)
NOTHING(_Unwind_GetCFA)
NOTHING(_Unwind_GetDataRelBase)
NOTHING(_Unwind_GetIP)
NOTHING(_Unwind_GetIPInfo)
NOTHING(_Unwind_GetLanguageSpecificData)
NOTHING(_Unwind_GetRegionStart)
NOTHING(_Unwind_GetTextRelBase)
NEVER(_Unwind_DeleteException)
NEVER(_Unwind_RaiseException)
NEVER(_Unwind_Resume)
NEVER(_Unwind_SetGR)
NEVER(_Unwind_SetIP)
