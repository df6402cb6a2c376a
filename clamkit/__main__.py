from clamkit.cli import main

main()
