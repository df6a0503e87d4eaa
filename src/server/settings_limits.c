/* settings_limits.c - memory limits of devices: "cuda=40G,cuda:1=20G". As the value of memory-limit such a
 * list is divided: cpu=SIZE is memory-limit itself, the rest is device-memory-limit. */
#include "server/settings_impl.h"

#include <string.h>

/* Takes the text before the next comma off *rest. */
static struct str take_entry(struct str *rest)
{
    ptrdiff_t comma = str_find(*rest, STR(","));
    struct str one = comma < 0 ? *rest : str_take(*rest, (size_t)comma);

    *rest = comma < 0 ? (struct str){ 0 } : str_skip(*rest, (size_t)comma + 1);
    return str_trim(one);
}

static int refuse(struct str list, struct str entry, const char *name, struct err *e)
{
    return err_set(
        e, E_INVALID,
        "%s is '%.*s': '%.*s' must be DEVICE=SIZE, as in cuda=40G,cuda:1=20G,cpu=8G, with "
        "each device once and at most %d of them",
        name, (int)(list.n < 80 ? list.n : 80), list.p, (int)(entry.n < 40 ? entry.n : 40), entry.p,
        MEMBUDGET_LIMITS);
}

/* Divides "cuda:1=20G". */
static bool split_entry(struct str entry, struct str *device, struct str *size)
{
    ptrdiff_t is = str_find(entry, STR("="));

    if (is < 1) return false;
    *device = str_trim(str_take(entry, (size_t)is));
    *size = str_trim(str_skip(entry, (size_t)is + 1));
    return device->n > 0 && device->n < MEMBUDGET_NAME;
}

static bool has_device(const struct membudget_limit *l, int n, struct str device)
{
    for (int i = 0; i < n; i++)
        if (str_is(device, l[i].device)) return true;
    return false;
}

int settings_device_limits(const struct settings *s, struct membudget_limit *out, int *n,
                           struct err *e)
{
    struct str list = str_c(s->device_memory_limit), rest = list, device, size;

    *n = 0;
    while (rest.n) {
        struct str entry = take_entry(&rest);
        double bytes;
        if (*n == MEMBUDGET_LIMITS || !split_entry(entry, &device, &size) ||
            !str_starts(device, STR("cuda")) || has_device(out, *n, device) ||
            !knob_parse_size(size, &bytes) || !(bytes >= 1 && bytes <= 1e18))
            return refuse(list, entry, "device-memory-limit", e);
        memcpy(out[*n].device, device.p, device.n);
        out[*n].device[device.n] = 0;
        out[(*n)++].bytes = (uint64_t)bytes;
    }
    return OK;
}

int settings_set_limits(struct settings *s, struct str list, struct knob_source src, struct err *e)
{
    struct str rest = list, device, size, host = { 0 };
    struct buf others = { 0 };
    int rc = OK;

    while (rc == OK && rest.n) {
        struct str entry = take_entry(&rest);
        if (!split_entry(entry, &device, &size)) rc = refuse(list, entry, src.name, e);
        else if (str_is(device, "cpu") && host.p) rc = refuse(list, entry, src.name, e);
        else if (str_is(device, "cpu")) host = size;
        else buf_printf(&others, "%s%.*s", others.n ? "," : "", STR_ARG(entry));
    }
    if (rc == OK) rc = buf_check(&others, e);
    if (rc == OK && host.p) rc = knob_set(s, knob_find(STR("memory-limit"), false), host, src, e);
    if (rc == OK && others.n)
        rc = knob_set(s, knob_find(STR("device-memory-limit"), false), buf_str(&others), src, e);
    buf_release(&others);
    return rc;
}
