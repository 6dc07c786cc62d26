/* file_rows.h: bytes of a row in the GGUF file. */
#ifndef GGFW_FILE_ROWS_H
#define GGFW_FILE_ROWS_H

#include <stdint.h>

/* Bytes of n_in columns of a ggml type, 0 for an unknown type or a width that is no multiple of its block. */
int64_t file_row_bytes(int32_t format, int64_t n_in);

#endif
