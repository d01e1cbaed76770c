# Finds protobuf where its targets are not known: those that find_package makes belong to the directory that it is called in. Protobuf's
# own description knows what protobuf links; CMake's does not, from protobuf 22 on.
function(nearcall_find_protobuf)
  if(NOT TARGET protobuf::protoc)
    set(CMAKE_FIND_PACKAGE_PREFER_CONFIG ON)
    find_package(Protobuf ${ARGN})
  endif()
endfunction()

# nearcall_generate(TARGET FILE.proto...)
#
# Adds to TARGET what protoc and nearcall's plugin make of .proto files: FILE.pb.h, FILE.pb.cc and FILE.nearcall.hpp. Files are found
# from the current source directory, and included by their names.
function(nearcall_generate target)
  nearcall_find_protobuf(REQUIRED)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}-generated)
  file(MAKE_DIRECTORY ${out})
  foreach(file ${ARGN})
    get_filename_component(path ${file} ABSOLUTE)
    get_filename_component(directory ${path} DIRECTORY)
    get_filename_component(base ${path} NAME_WLE)
    add_custom_command(
      OUTPUT ${out}/${base}.pb.cc ${out}/${base}.pb.h ${out}/${base}.nearcall.hpp
      COMMAND protobuf::protoc --plugin=protoc-gen-nearcall_cpp=$<TARGET_FILE:nearcall::protoc-gen-nearcall_cpp>
              --cpp_out=${out} --nearcall_cpp_out=${out} -I ${directory} ${path}
      DEPENDS ${path} nearcall::protoc-gen-nearcall_cpp
      VERBATIM)
    target_sources(${target} PRIVATE ${out}/${base}.pb.cc ${out}/${base}.nearcall.hpp)
  endforeach()
  target_include_directories(${target} PUBLIC ${out})
  target_link_libraries(${target} PUBLIC nearcall::nearcall)
endfunction()
