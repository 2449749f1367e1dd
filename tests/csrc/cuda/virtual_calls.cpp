// What stands between torch's tensors and the engines, in one file, since torch's headers take longest to compile.
#include "call.cpp"
#include "check.cpp"
#include "dtypes.cpp"
#include "overlap.cpp"
#include "programs.cpp"
#include "tables.cpp"
