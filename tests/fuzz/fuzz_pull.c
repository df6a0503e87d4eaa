/* Fuzz target: what a hub answers and what an earlier download left. The first byte chooses between the
 * list of files with the choice among them, headers, and the record of a part. */
#include "base/mem.h"
#include "pull/hubreply.h"
#include "pull/part.h"

/* Every name of a list is safe as a path, and the choice stays inside the list. */
static void read_list(struct str text)
{
    struct hub_files l = { 0 };
    struct hub_choice c;
    char commit[41] = "";

    if (hubreply_files(&l, commit, text, NULL) == OK) {
        if (!hub_is_sum(commit)) __builtin_trap();
        for (int i = 0; i < l.n; i++) {
            if (!hub_name_is_safe(str_c(l.at[i].name))) __builtin_trap();
            if (l.at[i].sum[0] && !hub_is_sum(l.at[i].sum)) __builtin_trap();
        }
        if (hub_choose(&l, str_of(NULL, 0), &c, NULL) == OK && c.head >= l.n) __builtin_trap();
        if (l.n > 0 && hub_choose(&l, str_c(l.at[0].name), &c, NULL) == OK &&
            (c.head < 0 || !l.at[c.head].chosen))
            __builtin_trap();
        hub_choose(&l, STR("Q4_K_M"), &c, NULL);
    }
    hub_files_release(&l);
}

static void read_headers(struct str text)
{
    struct hub_head h;

    hub_head_init(&h);
    while (text.n) {
        ptrdiff_t end = str_find(text, STR("\n"));
        struct str line = end < 0 ? text : str_take(text, (size_t)end + 1);
        hub_head_line(&h, line);
        text = str_skip(text, line.n);
    }
    if (h.etag[0] && !hub_is_sum(h.etag)) __builtin_trap();
    if (h.linked_etag[0] && !hub_is_sum(h.linked_etag)) __builtin_trap();
}

static void read_record(struct str text)
{
    enum { CAP = 64 };
    uint64_t chunk, done[CAP], size = 100000, sum = 0;
    int n;

    if (!part_read_record(text.p, text.n, size, &chunk, done, CAP, &n)) return;
    for (int i = 0; i < n; i++) sum += done[i];
    if (sum > size) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *copy = n > 1 ? mem_dup(data + 1, n - 1) : NULL; /* exactly as long */
    struct str text = str_of(copy, n - 1);

    if (!copy) return 0;
    if (data[0] % 3 == 0) read_list(text);
    else if (data[0] % 3 == 1) read_headers(text);
    else read_record(text);
    mem_free(copy);
    return 0;
}
