#error "emulated: the vendor's random numbers are not emulated"
