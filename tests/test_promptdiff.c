/* The log line that tells where a client's prompt first differs from its last one. */
#include "support.h"

#include "api/promptdiff.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static struct ids ids_of(const int32_t *p, size_t n)
{
    struct ids v = { 0 };

    ids_add(&v, p, n);
    return v;
}

/* What promptdiff_note logs for this prompt. */
static void note(struct promptdiff *d, uint64_t key, const int32_t *p, size_t n, struct buf *out)
{
    char path[200];
    struct ids v = ids_of(p, n);
    int saved = dup(2), fd;

    snprintf(path, sizeof path, "%s/log", temp_dir());
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(fd, 2);
    promptdiff_note(d, key, &v, NULL, "req-1");
    dup2(saved, 2);
    close(saved);
    close(fd);
    buf_clear(out);
    file_read(out, path, 1 << 16, NULL);
    buf_cstr(out);
    ids_release(&v);
}

static void the_first_difference_is_logged_per_client(void **state)
{
    static const int32_t a[] = { 1, 2, 3, 4 }, b[] = { 1, 2, 9, 4, 5 }, c[] = { 1, 2, 9, 4, 5, 6 };
    struct promptdiff d = { 0 };
    struct buf log = { 0 };

    (void)state;
    log_set_level(LOG_DEBUG);
    note(&d, 1, a, 4, &log);
    assert_int_equal(log.n, 0); /* there was none before */
    note(&d, 2, b, 5, &log);
    assert_int_equal(log.n, 0); /* another client */
    note(&d, 1, b, 5, &log);
    assert_non_null(strstr(log.p, "id=req-1 tokens=5 last_tokens=4 equal_tokens=2"));
    note(&d, 1, c, 6, &log);
    assert_non_null(strstr(log.p, "tokens=6 last_tokens=5 equal_tokens=5"));
    for (uint64_t k = 10; k < 10 + PROMPTDIFF_CLIENTS; k++) note(&d, k, a, 4, &log);
    note(&d, 1, c, 6, &log);
    assert_int_equal(log.n, 0); /* forgotten for newer ones */
    log_set_level(LOG_WARN);
    buf_release(&log);
    promptdiff_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_difference_is_logged_per_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
