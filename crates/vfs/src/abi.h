/* The numbers of bytes that C and Rust share: answers to ioctl(2) on a descriptor of a mount, and
 * messages of the server's socket. Both languages take the numbers from this file, Rust by
 * abi.rs beside it, and compile only while their structures agree with them. A field ends where
 * the next one begins. */
#pragma once

/* Begins every answer to ioctl(2). */
#define ATOLL_MAGIC 0x4c4f5441
#define ATOLL_VERSION 2

/* The request ATOLL_IDENTIFY, and the fields of its answer. */
#define ATOLL_IDENTIFY 0x803041f5
#define ATOLL_IDENTITY_MAGIC 0
#define ATOLL_IDENTITY_VERSION 4
#define ATOLL_IDENTITY_SESSION 8
#define ATOLL_IDENTITY_INO 16
#define ATOLL_IDENTITY_HANDLE 24
#define ATOLL_IDENTITY_TOKEN 32
#define ATOLL_IDENTITY_SIZE 48

/* The request ATOLL_MAP, and the fields of its argument, which is the answer afterwards. */
#define ATOLL_MAP 0xc0a041f6
#define ATOLL_MAP_MAGIC 0
#define ATOLL_MAP_VERSION 4
#define ATOLL_MAP_OFFSET 8
#define ATOLL_MAP_LENGTH 16
#define ATOLL_MAP_TOKEN 24
#define ATOLL_MAP_WRITABLE 40
#define ATOLL_MAP_ADDRESS_LENGTH 44
#define ATOLL_MAP_ADDRESS 48
#define ATOLL_MAP_ZERO 156
#define ATOLL_MAP_SIZE 160
/* In place of "writable" in the argument: the bytes may be in several memories. */
#define ATOLL_MAP_PARTS 1

/* Begins every message of the server's socket, whose numbers are little-endian. */
#define ATOLL_CONTROL_MAGIC 0x6c6f7461
#define ATOLL_CONTROL_VERSION 1

/* The kinds of a message about a mapped file, and its fields. */
#define ATOLL_ASK_MEMORY 3
#define ATOLL_ASK_SYNC 4
#define ATOLL_ASK_MAGIC_AT 0
#define ATOLL_ASK_VERSION_AT 4
#define ATOLL_ASK_KIND_AT 6
#define ATOLL_ASK_ZEROS_AT 7
#define ATOLL_ASK_TOKEN_AT 12
#define ATOLL_ASK_SIZE 28

/* The answer without its text. */
#define ATOLL_ANSWER_GRANTED 0
#define ATOLL_ANSWER_MAGIC_AT 0
#define ATOLL_ANSWER_VERSION_AT 4
#define ATOLL_ANSWER_STATUS_AT 6
#define ATOLL_ANSWER_MODE_AT 7
#define ATOLL_ANSWER_SIZE 8
