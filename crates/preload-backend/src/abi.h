/* The numbers of the interface between the interposer and its backend, which backend.h
 * describes. Both languages take the numbers from this file, and compile only while their
 * structures agree with them. A field ends where the next one begins. */
#pragma once

/* Answers. */
#define ATOLL_BY_KERNEL -4096
#define ATOLL_CLOSED -4097

/* The fields of struct atoll_file. */
#define ATOLL_FILE_SESSION 0
#define ATOLL_FILE_INO 8
#define ATOLL_FILE_HANDLE 16
#define ATOLL_FILE_TOKEN 24
#define ATOLL_FILE_ADOPTED 40
#define ATOLL_FILE_CONNECTION 48
#define ATOLL_FILE_DEVICE 56
#define ATOLL_FILE_FD 64
#define ATOLL_FILE_ACCESS 68
#define ATOLL_FILE_SIZE 72

/* The fields of struct atoll_backend. */
#define ATOLL_BACKEND_BEGIN 0
#define ATOLL_BACKEND_BEFORE_FORK 8
#define ATOLL_BACKEND_AFTER_FORK 16
#define ATOLL_BACKEND_FORKED 24
#define ATOLL_BACKEND_RESERVED 32
#define ATOLL_BACKEND_ADOPT 40
#define ATOLL_BACKEND_CLOSED 48
#define ATOLL_BACKEND_READ 56
#define ATOLL_BACKEND_WRITE 64
#define ATOLL_BACKEND_APPEND 72
#define ATOLL_BACKEND_GETATTR 80
#define ATOLL_BACKEND_TRUNCATE 88
#define ATOLL_BACKEND_FSYNC 96
#define ATOLL_BACKEND_FALLOCATE 104
#define ATOLL_BACKEND_SIZE 112

/* Structures and types of the system that cross it. */
#define ATOLL_IOVEC_SIZE 16
#define ATOLL_STATX_SIZE 256
#define ATOLL_OFFSET_SIZE 8
