import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Nearcall(ConanFile):
    name = "nearcall"
    description = "gRPC services over the nearest path between caller and callee"
    license = "Apache-2.0"
    topics = ("grpc", "rpc", "coroutines", "shared-memory")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "gzip": [True, False], "tls": [True, False]}
    default_options = {"shared": False, "fPIC": True, "gzip": True, "tls": True}
    implements = ["auto_shared_fpic"]
    exports_sources = "CMakeLists.txt", "cmake/*", "include/*", "plugin/*", "src/*"
    test_package_folder = os.path.join("test", "packaging")

    def set_version(self):
        cmake = load(self, os.path.join(self.recipe_folder, "CMakeLists.txt"))
        self.version = re.search(r"project\(nearcall VERSION ([0-9.]+)", cmake)[1]

    def export_sources(self):
        copy(self, "LICENSE", os.path.join(self.recipe_folder, ".."), self.export_sources_folder)

    def requirements(self):
        # Generated code includes protobuf's headers and calls its functions.
        self.requires("protobuf/[>=3.21]", transitive_headers=True, transitive_libs=True)
        if self.options.gzip:
            self.requires("zlib/[>=1.2.11 <2]")
        if self.options.tls:
            self.requires("openssl/[>=3 <4]")

    def build_requirements(self):
        self.tool_requires("protobuf/<host_version>")

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["NEARCALL_TESTS"] = False
        toolchain.cache_variables["CMAKE_DISABLE_FIND_PACKAGE_ZLIB"] = not self.options.gzip
        toolchain.cache_variables["CMAKE_DISABLE_FIND_PACKAGE_OpenSSL"] = not self.options.tls
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # find_package reads what the library installs, which has nearcall_generate.
        self.cpp_info.set_property("cmake_find_mode", "none")
        core = self.cpp_info.components["nearcall"]
        core.builddirs = [os.path.join("lib", "cmake", "nearcall")]
        core.set_property("pkg_config_name", "nearcall")
        core.libs = ["nearcall"]
        core.requires = ["protobuf::libprotobuf"] + (["zlib::zlib"] if self.options.gzip else [])
        core.system_libs = ["pthread"]
        if self.options.tls:
            tls = self.cpp_info.components["nearcall-tls"]
            tls.set_property("pkg_config_name", "nearcall-tls")
            tls.libs = ["nearcall-tls"]
            tls.requires = ["nearcall", "openssl::openssl"]
