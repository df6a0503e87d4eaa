/* A program as it was compiled with the first tern.h (tests/abi/first): its structs are smaller than
 * the library's. Everything it knew works, and nothing is written past the end of its structs. */
#include <tern.h>

#include <stdio.h>
#include <string.h>

#define GUARD 0x5a

/* Each struct with a guard behind it. */
#define GUARDED(type, name)       \
    struct {                      \
        type v;                   \
        unsigned char guard[256]; \
    } name

#define FILL(x) memset(&(x), GUARD, sizeof(x))

static int is_intact(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != GUARD) return 0;
    return 1;
}
#define CHECK(x)                                                  \
    do {                                                          \
        if (!is_intact((x).guard, sizeof(x).guard)) {             \
            fprintf(stderr, "%s was written past its end\n", #x); \
            return 1;                                             \
        }                                                         \
    } while (0)
#define NEED(call)                                            \
    do {                                                      \
        if ((call) != TERN_OK) {                              \
            fprintf(stderr, "%s: %s\n", #call, tern_error()); \
            return 1;                                         \
        }                                                     \
    } while (0)

int main(int argc, char **argv)
{
    GUARDED(tern_options, o);
    GUARDED(tern_params, p);
    GUARDED(tern_event, ev);
    GUARDED(tern_stats, st);
    GUARDED(tern_model_info, info);
    tern_model *m = NULL;
    tern_request *r = NULL;
    size_t n = 0;

    if (argc < 2) return 2;
    FILL(o), FILL(p), FILL(ev), FILL(st), FILL(info);
    tern_options_init(&o.v);
    o.v.threads = 1;
    o.v.context = 256;
    NEED(tern_open(&m, argv[1], &o.v));
    NEED(tern_info(m, &info.v));
    tern_params_init(&p.v, m);
    p.v.temp = 0;
    p.v.max_tokens = 12;
    NEED(tern_submit(&r, m, "Once upon a time", 16, &p.v));
    do {
        NEED(tern_next(r, &ev.v));
        n += ev.v.n;
    } while (ev.v.finish == TERN_FINISH_NONE);
    NEED(tern_request_stats(r, &st.v));
    CHECK(o);
    CHECK(p);
    CHECK(ev);
    CHECK(st);
    CHECK(info);
    tern_request_close(r);
    tern_close(m);
    return n > 0 && st.v.tokens == 12 && info.v.context == 256 && info.v.weight_bytes > 0 ? 0 : 1;
}
