# Shell completion: the command prints the scripts when it is installed.
install(CODE "
    foreach(shell bash zsh)
        execute_process(COMMAND \"$<TARGET_FILE:weft_tool>\" completion \${shell}
            OUTPUT_FILE \"${PROJECT_BINARY_DIR}/completion.\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()")
install(FILES ${PROJECT_BINARY_DIR}/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME weft)
install(FILES ${PROJECT_BINARY_DIR}/completion.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _weft)
