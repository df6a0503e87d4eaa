/* abi.c - versions, errors, and structs that callers have in another size. */
#include "abi/abi_impl.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>

_Thread_local struct err abi_last;

const char *tern_version(void) { return TERN_VERSION; }
int tern_abi(void) { return TERN_ABI; }
const char *tern_error(void) { return abi_last.msg; }
const char *tern_code_name(int code) { return err_name(code); }
void tern_free(void *p) { mem_free(p); }

int abi_invalid(const char *call, const char *what)
{
    return err_set(&abi_last, E_INVALID, "%s: %s", call, what);
}

void abi_write_sized(void *to, size_t size, const void *from, size_t ours)
{
    memcpy(to, from, size < ours ? size : ours);
}

int abi_read_sized(const char *call, void *to, size_t ours, const void *from, size_t size)
{
    const unsigned char *p = from;

    if (size < ABI_SIZE_LEAST)
        return err_set(&abi_last, E_INVALID,
                       "%s: size is %zu: set it with tern_options_init or tern_params_init", call,
                       size);
    for (size_t i = ours; i < size; i++)
        if (p[i])
            return err_set(&abi_last, E_UNSUPPORTED,
                           "%s: byte %zu of a struct of %zu bytes is set, but this version of the "
                           "library knows %zu bytes",
                           call, i, size, ours);
    memcpy(to, from, size < ours ? size : ours);
    return OK;
}

uint64_t abi_until(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : clock_ns() + (uint64_t)timeout_ms * 1000000u;
}

bool abi_wait_until(pthread_cond_t *news, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec t = { .tv_sec = (time_t)(until_ns / 1000000000u),
                          .tv_nsec = (long)(until_ns % 1000000000u) };

    if (until_ns == UINT64_MAX) return pthread_cond_wait(news, lock), true;
    return pthread_cond_timedwait(news, lock, &t) != ETIMEDOUT;
}
