/* hold.exe FILE TEXT MILLISECONDS: writes TEXT to the beginning of FILE and holds it for that long with share mode 0, as
   some editors, scanners and backups do: nobody else can open it meanwhile. Says `held` when it begins. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

int main(int count, char **words) {
    if (count != 4) return 2;
    HANDLE file = INVALID_HANDLE_VALUE;
    /* The service may just be reading it. */
    for (int turn = 0; turn < 1000 && file == INVALID_HANDLE_VALUE; turn++) {
        file = CreateFileA(words[1], GENERIC_READ | GENERIC_WRITE, 0, NULL, OPEN_EXISTING, 0, NULL);
        if (file == INVALID_HANDLE_VALUE) Sleep(10);
    }
    DWORD written = 0;
    if (file == INVALID_HANDLE_VALUE || !WriteFile(file, words[2], (DWORD)strlen(words[2]), &written, NULL)) return 1;
    puts("held");
    fflush(stdout);
    Sleep((DWORD)atoi(words[3]));
    CloseHandle(file);
    return 0;
}
