/* pagequery.h - what requests about files and batches say in their URL: the page of a list
 * (?limit=20&after=ID&order=asc&purpose=batch), and an id in the path. */
#ifndef TERN_JOBS_PAGEQUERY_H
#define TERN_JOBS_PAGEQUERY_H

#include "jobs/jobstore.h"

struct pagequery {
    char after[STORE_ID], purpose[32]; /* "": not given */
    int limit;
    bool oldest_first;
};
/* E_INVALID names the parameter. */
int pagequery_read(struct pagequery *out, struct str query, struct err *e);
/* The part of the path between the two texts. false: it is not an id. */
bool pagequery_id(struct str path, const char *before, const char *behind, char out[STORE_ID]);
#endif
