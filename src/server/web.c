/* web.c - the files of the web page. tools/embed.sh turns web/ into C arrays (web.inc, in the build
 * folder). */
#include "server/web.h"

#include "web.inc"

#define N_FILES (sizeof(web_files) / sizeof(web_files[0]))

const struct web_file *web_find(struct str path)
{
    if (str_is(path, "/")) path = STR("/index.html");
    for (size_t i = 0; i < N_FILES; i++)
        if (str_is(path, web_files[i].path)) return &web_files[i];
    return NULL;
}

bool web_is_greeting(struct str path, struct str accept)
{
    return str_is(path, "/") && str_find(accept, STR("text/html")) < 0;
}
