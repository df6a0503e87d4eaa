/* The framework itself: it finds a missing check only if a scenario has one, so this scenario
 * shows that every allocation of a small one is failed once. */
#include "fault.h"

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"

static int fill_buf(void *arg, struct err *e)
{
    struct buf b = { 0 };
    char *copy = mem_strdup("copy");
    int rc;
    (void)arg;
    for (int i = 0; i < 100; i++) buf_printf(&b, "line %d\n", i);
    rc = copy ? buf_check(&b, e) : err_nomem(e, "a copy");
    mem_free(copy);
    buf_release(&b);
    return rc;
}

static void every_allocation_of_a_buffer_fails_once(void **state)
{
    (void)state;
    fault_run("a buffer that grows", fill_buf, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation_of_a_buffer_fails_once) };
    fault_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
