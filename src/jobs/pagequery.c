#include "jobs/pagequery.h"

#include "net/query.h"

enum { PAGE_DEFAULT = 20, PAGE_MAX = 10000 };

int pagequery_read(struct pagequery *out, struct str query, struct err *e)
{
    struct str v;
    char text[32];
    int64_t n;

    *out = (struct pagequery){ .limit = PAGE_DEFAULT };
    if (query_find(query, "limit", &v)) {
        if (!query_decode(v, text, sizeof text) || !str_to_i64(str_c(text), &n) || n < 1 ||
            n > PAGE_MAX)
            return err_set(e, E_INVALID, "limit must be a number from 1 to %d", PAGE_MAX);
        out->limit = (int)n;
    }
    if (query_find(query, "after", &v) && !query_decode(v, out->after, sizeof out->after))
        return err_set(e, E_INVALID, "after is not an id");
    if (query_find(query, "purpose", &v) && !query_decode(v, out->purpose, sizeof out->purpose))
        return err_set(e, E_INVALID, "purpose is too long");
    if (query_find(query, "order", &v)) {
        out->oldest_first = query_is(v, "asc");
        if (!out->oldest_first && !query_is(v, "desc"))
            return err_set(e, E_INVALID, "order must be \"asc\" or \"desc\"");
    }
    return OK;
}

bool pagequery_id(struct str path, const char *before, const char *behind, char out[STORE_ID])
{
    path = str_skip(path, strlen(before));
    path.n -= path.n >= strlen(behind) ? strlen(behind) : path.n;
    if (path.n == 0 || path.n >= STORE_ID) return false;
    for (size_t i = 0; i < path.n; i++)
        if (path.p[i] <= ' ' || path.p[i] == '/' || path.p[i] > '~') return false;
    memcpy(out, path.p, path.n);
    out[path.n] = 0;
    return true;
}
