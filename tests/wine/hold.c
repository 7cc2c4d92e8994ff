/* hold.exe FILE FROM MILLISECONDS: writes what is in FROM to the beginning of FILE and holds it for that long with share
   mode 0, as some editors, scanners and backups do: nobody else can open it meanwhile. Says `held` when it begins. */
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

static char text[1 << 20];

int main(int count, char **words) {
    if (count != 4) return 2;
    FILE *from = fopen(words[2], "rb");
    if (!from) return 1;
    DWORD length = (DWORD)fread(text, 1, sizeof text, from), written = 0;
    HANDLE file = INVALID_HANDLE_VALUE;
    /* The service may just be reading it. */
    for (int turn = 0; turn < 1000 && file == INVALID_HANDLE_VALUE; turn++) {
        file = CreateFileA(words[1], GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING, 0, NULL);
        if (file == INVALID_HANDLE_VALUE) Sleep(10);
    }
    if (file == INVALID_HANDLE_VALUE || !WriteFile(file, text, length, &written, NULL)) return 1;
    puts("held");
    fflush(stdout);
    Sleep((DWORD)atoi(words[3]));
    CloseHandle(file);
    return 0;
}
