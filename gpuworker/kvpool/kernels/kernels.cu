// All kernels of the embedded module.
#include "pages.h"
#include "ref.h"
