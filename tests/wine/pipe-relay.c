/* pipe-relay.exe NAME PORT: a named pipe that leads to a TCP port of 127.0.0.1.
 *
 * Stands where an engine's pipe stands on Windows, so that a real engine on this machine can be asked through it. Each
 * connection has a thread for either way; the pipe is overlapped, because one way would otherwise wait for the other. */
#include <winsock2.h>
#include <windows.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER = 65536 };

struct relay {
    HANDLE pipe;
    SOCKET socket;
    LONG ways; /* that still run */
};

/* Waits for an overlapped operation; the octets it moved, or 0 when the pipe is gone. */
static DWORD finish(HANDLE pipe, BOOL begun, OVERLAPPED *operation) {
    DWORD moved = 0;
    if (!begun && GetLastError() != ERROR_IO_PENDING)
        return 0;
    return GetOverlappedResult(pipe, operation, &moved, TRUE) ? moved : 0;
}

static void end(struct relay *relay) {
    shutdown(relay->socket, SD_BOTH);
    CancelIoEx(relay->pipe, NULL);
    if (InterlockedDecrement(&relay->ways) > 0)
        return;
    closesocket(relay->socket);
    DisconnectNamedPipe(relay->pipe);
    CloseHandle(relay->pipe);
    free(relay);
}

static DWORD WINAPI to_socket(void *argument) {
    struct relay *relay = argument;
    OVERLAPPED operation = {0};
    char buffer[BUFFER];
    DWORD length;
    operation.hEvent = CreateEventA(NULL, TRUE, FALSE, NULL);
    while ((length = finish(relay->pipe, ReadFile(relay->pipe, buffer, BUFFER, NULL, &operation), &operation)) > 0)
        if (send(relay->socket, buffer, (int)length, 0) != (int)length)
            break;
    CloseHandle(operation.hEvent);
    end(relay);
    return 0;
}

static DWORD WINAPI to_pipe(void *argument) {
    struct relay *relay = argument;
    OVERLAPPED operation = {0};
    char buffer[BUFFER];
    int length;
    operation.hEvent = CreateEventA(NULL, TRUE, FALSE, NULL);
    while ((length = recv(relay->socket, buffer, BUFFER, 0)) > 0)
        if (finish(relay->pipe, WriteFile(relay->pipe, buffer, length, NULL, &operation), &operation) != (DWORD)length)
            break;
    /* What was written is read before the pipe is taken away. */
    FlushFileBuffers(relay->pipe);
    CloseHandle(operation.hEvent);
    end(relay);
    return 0;
}

int main(int count, char **arguments) {
    struct sockaddr_in server = {0};
    WSADATA unused;
    if (count != 3 || WSAStartup(MAKEWORD(2, 2), &unused) != 0)
        return 2;
    server.sin_family = AF_INET;
    server.sin_port = htons((u_short)atoi(arguments[2]));
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int first = 1;; first = 0) {
        HANDLE pipe = CreateNamedPipeA(arguments[1], PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED, PIPE_TYPE_BYTE,
                                       PIPE_UNLIMITED_INSTANCES, BUFFER, BUFFER, 0, NULL);
        OVERLAPPED operation = {0};
        struct relay *relay = malloc(sizeof *relay);
        BOOL connected;
        if (pipe == INVALID_HANDLE_VALUE || relay == NULL) {
            fprintf(stderr, "no pipe %s: error %lu\n", arguments[1], GetLastError());
            return 1;
        }
        if (first) {
            puts("ready");
            fflush(stdout);
        }
        operation.hEvent = CreateEventA(NULL, TRUE, FALSE, NULL);
        connected = ConnectNamedPipe(pipe, &operation);
        if (!connected && GetLastError() == ERROR_IO_PENDING)
            WaitForSingleObject(operation.hEvent, INFINITE);
        CloseHandle(operation.hEvent);
        relay->pipe = pipe;
        relay->socket = socket(AF_INET, SOCK_STREAM, 0);
        relay->ways = 2;
        if (connect(relay->socket, (struct sockaddr *)&server, sizeof server) != 0) {
            relay->ways = 1;
            end(relay);
            continue;
        }
        CloseHandle(CreateThread(NULL, 0, to_socket, relay, 0, NULL));
        CloseHandle(CreateThread(NULL, 0, to_pipe, relay, 0, NULL));
    }
}
