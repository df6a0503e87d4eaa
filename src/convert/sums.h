/* sums.h - SHA-256 of files, as sha256sum prints and checks them. */
#ifndef TERN_CONVERT_SUMS_H
#define TERN_CONVERT_SUMS_H

#include "base/buf.h"
#include "base/err.h"

int sums_file(const char *path, char hex[65], struct err *e);
/* SHA256SUMS in the folder, over its other files but for those that are being written. */
int sums_folder(const char *dir, struct err *e);
#endif
