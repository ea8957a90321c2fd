// Images of modules: shared libraries for this host, given as the bytes of their files.
#include "modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

namespace emulated {
namespace {

constexpr unsigned char fat_binary[] = {0x50, 0xED, 0x55, 0xBA};

CUresult refuse(const char* what, CUresult error) {
    std::fprintf(stderr, "emulated: a module cannot be loaded: %s\n", what);
    return error;
}

// Tell why an image does not run here; CUDA_SUCCESS where nothing in its first bytes says so.
CUresult check(const char* image) {
    if (!std::memcmp(image, fat_binary, sizeof fat_binary))
        return refuse("it is a fat binary for a GPU", CUDA_ERROR_NO_BINARY_FOR_GPU);
    if (std::memcmp(image, ELFMAG, SELFMAG)) {
        const bool is_ptx = std::strstr(image, ".version");
        return refuse(is_ptx ? "it is PTX, and nothing compiles that here"
                             : "it is no shared library", CUDA_ERROR_INVALID_IMAGE);
    }
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    if (header.e_machine == EM_CUDA)
        return refuse("it is a cubin, machine code of a GPU", CUDA_ERROR_NO_BINARY_FOR_GPU);
    const bool is_ours = header.e_machine == EM_X86_64 && header.e_type == ET_DYN
                         && header.e_ident[EI_CLASS] == ELFCLASS64;
    return is_ours ? CUDA_SUCCESS
                   : refuse("it is no shared library of x86-64", CUDA_ERROR_INVALID_IMAGE);
}

// The length of a library's file: a linker puts the table of sections at its end.
std::size_t length_of(const char* image) {
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    return header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
}

// The file stays open while the library is loaded: the loader knows a library by its path, and
// takes another one that has the same for it.
CUresult load(const char* image, std::size_t length, std::shared_ptr<Library>& library) {
    const int file = memfd_create("emulated module", MFD_CLOEXEC);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    std::string bytes(image, length);
    const bool written = write(file, bytes.data(), length) == static_cast<ssize_t>(length);
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void* handle = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!handle) {
        close(file);
        return refuse(written ? dlerror() : std::strerror(errno), CUDA_ERROR_INVALID_IMAGE);
    }
    library = std::make_shared<Library>(handle, file);
    return CUDA_SUCCESS;
}

}  // namespace

Library::~Library() {
    dlclose(handle_);
    close(file_);
}

void* Library::symbol(const std::string& name) const { return dlsym(handle_, name.c_str()); }

CUresult load_image(const void* image, std::shared_ptr<Library>& library) {
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    const char* bytes = static_cast<const char*>(image);
    if (const CUresult error = check(bytes)) return error;
    return load(bytes, length_of(bytes), library);
}

CUresult load_file(const char* path, std::shared_ptr<Library>& library) {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    // A byte more, as behind an image in memory: compilers' callers cut the last one off.
    bytes.resize(std::max(bytes.size() + 1, sizeof(Elf64_Ehdr)));
    if (const CUresult error = check(bytes.data())) return error;
    if (length_of(bytes.data()) > bytes.size())
        return refuse("its end is missing", CUDA_ERROR_INVALID_IMAGE);
    return load(bytes.data(), length_of(bytes.data()), library);
}

}  // namespace emulated
