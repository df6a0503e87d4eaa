/* facts.c - see facts.h. */
#include "server/facts.h"

#include "base/cores.h"
#include "base/numa.h"
#include "base/memavail.h"

void facts_read_machine(struct settings_facts *f, const struct settings *s)
{
    struct memavail m;
    struct numa n = { 0 };

    memavail_read(&m, "");
    f->memory = m.total;
    f->n_cores = cores_find()->n;
    if (numa_find(&n, s->numa, NULL) == OK) f->numa = n.n ? "spread" : "off";
}
